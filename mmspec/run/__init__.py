"""Steps that every program takes with a model: open it by name, place it, encode a request, run it plainly and drafted."""
