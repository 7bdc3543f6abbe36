"""Routers: rules that say which drafted blocks stand, and which the target redraws."""
