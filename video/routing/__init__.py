"""Routers: rules that decide which drafted blocks are accepted and which the target regenerates."""
