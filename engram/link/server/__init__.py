"""The server's side: certificates, registration, membership, control."""
