"""The public face of ringcast."""
