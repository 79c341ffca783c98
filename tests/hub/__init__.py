"""The hub, both ways, against a loopback server."""
