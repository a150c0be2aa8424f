"""The broker: connections, dispatch, handlers, groups."""
