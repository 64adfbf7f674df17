"""The SuperLink's side: certificates, registration, membership, control."""
