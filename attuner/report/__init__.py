"""From a campaign's events to what a person reads: report.md, report.html, the board, the live block's pieces. Pure."""
