"""The bench engine: settings, cases, interleaved runs, rows. It knows no domain."""
