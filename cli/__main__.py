"""`python -m autoqec.cli`: the same as the program `autoqec`."""

from autoqec.cli.autoqec import main

if __name__ == "__main__":
    main()
