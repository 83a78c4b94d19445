"""The version, without the cost of looking it up in the installed distribution."""

__version__ = "0.1.0"
