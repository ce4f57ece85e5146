"""Guards of a running query: sources, captures, state budget and idle inputs."""
