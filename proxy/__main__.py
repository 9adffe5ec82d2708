"""`python -m proxy` is `ullage`."""

from proxy.cli import main

if __name__ == "__main__":
    main()
