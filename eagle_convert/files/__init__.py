"""Files as bytes: formats read without trust, numpy on demand, folders that appear whole or not at all."""
