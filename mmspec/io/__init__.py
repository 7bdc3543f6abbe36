"""Everything that touches a file or a signal: atomic and locked writes, checked readers, loading of models, the gate of images,
validation of what came in, and interrupts. Imports nothing of ours."""
