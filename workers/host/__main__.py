"""`python -m workers.host`."""

from workers.host.serve import main

main()
