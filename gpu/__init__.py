"""ringcast package."""
