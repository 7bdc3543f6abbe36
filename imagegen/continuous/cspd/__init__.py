"""CSpD: continuous speculative decoding of masked tokens."""
