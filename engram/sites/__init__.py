"""Operation of a site: policy, approval, audit log, privacy ledger, doctor."""
