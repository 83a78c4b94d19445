"""The console: the pages that people look at, served at ``/``, and the JSON that only they need.

``routes`` puts it into the application, ``assets`` serves the files in ``static/``; ``timeline``, ``signals`` and
``ladder`` answer what a run's page shows beyond ``/api``. See docs/console.md.
"""
