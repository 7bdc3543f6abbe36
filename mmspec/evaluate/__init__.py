"""One bench engine, quality measures and pages that know no domain, and a folder for every domain."""
