"""The frontend: text in and out, `LLM` and `AsyncLLM`, the OpenAI-compatible server and the command line.

Import names from the modules or from `ringcast`. Importing this package imports nothing else.
"""
