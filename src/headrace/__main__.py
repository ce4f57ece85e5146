"""`python -m headrace`: the command line, for where scripts are not on the path."""

from headrace.cli.main import main

main()
