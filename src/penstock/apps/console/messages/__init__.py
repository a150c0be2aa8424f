"""Reading of a topic's records for the console: fetch, decode, filter, page and export."""
