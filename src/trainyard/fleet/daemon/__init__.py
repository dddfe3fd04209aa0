"""The daemon: jobs come over HTTP, are kept in a database, and run on a backend under a policy."""
