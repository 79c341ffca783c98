"""The hub, both ways: reading a head by byte ranges, publishing it with its evidence."""
