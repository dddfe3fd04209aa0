"""The daemon: jobs come over HTTP, are kept in a database, and run on an engine under a policy."""
