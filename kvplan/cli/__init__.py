"""The command line. stdout is data; stderr is `error:` and `hint:`."""
