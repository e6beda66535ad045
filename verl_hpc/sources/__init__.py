"""Where models come from: names on a hub, found in its cache on disk, and fetched into it."""
