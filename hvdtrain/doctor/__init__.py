"""Is a set of hosts fit for a launch? ``probe`` looks at one host, ``verdicts`` judges, ``examination`` does it all."""
