"""The ``ringcast`` command. `main.app` lists the commands; each has a module that is imported when it runs."""
