"""Parity: does a candidate accept what the reference accepts, and say what the target says?

Records and arithmetic need the standard library only; engines (``engines/``) load torch when they run.
"""
