"""``python -m minitvm.cli``."""

from minitvm.cli import main

main()
