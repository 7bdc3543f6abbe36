"""The folders of the zoo: names and loaders, what is read from them and written to them."""
