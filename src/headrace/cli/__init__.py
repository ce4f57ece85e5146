"""The `headrace` command: one thin module per subcommand, registered in `main`."""
