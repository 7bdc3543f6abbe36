"""Reports of finished benches and sweeps: tables, Markdown pages, and plots for print."""
