"""The configuration: loaded, checked, and where files lie."""
