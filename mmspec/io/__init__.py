"""Files and signals: atomic and locked writes, checked readers, loading of models, images, validation and interrupts."""
