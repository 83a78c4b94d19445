"""``python -m fusewire_webhook`` is ``fusewire``."""

from fusewire_webhook.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
