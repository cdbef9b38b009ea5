"""The OpenAI-compatible HTTP server: `app.create_app` for embedding, `run.serve` for the command line."""
