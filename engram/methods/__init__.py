"""Methods that train networks, one file each: settings, client, server, served model."""
