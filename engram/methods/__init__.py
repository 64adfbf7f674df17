"""Methods that train networks, one file each: settings, client, server, what serves."""
