"""placeholder docstring, to be written by the module."""
