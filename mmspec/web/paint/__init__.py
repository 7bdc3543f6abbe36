"""What the tabs show, as HTML and SVG made of numbers and escaped text; colours come from the page's style."""
