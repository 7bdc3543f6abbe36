"""The folders of the zoo's models: names, loaders and writers."""
