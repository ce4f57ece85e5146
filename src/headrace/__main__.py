"""`python -m headrace`: the command line, where scripts are not on the PATH."""

from headrace.cli.main import main

main()
