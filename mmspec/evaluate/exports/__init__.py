"""Pictures and films of a sweep in the folder layouts that public judges read."""
