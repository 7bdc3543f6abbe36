"""What the tabs run: two lanes, one after the other, each alone, with the moment of every round."""
