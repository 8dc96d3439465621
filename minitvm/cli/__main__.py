"""``python -m minitvm.cli``."""

from minitvm.__main__ import main

main()
