"""Tools for developers of the dashboard; run them from the root of the repository.

python -m dashboard.tools.serve --nodes 48        # serve the dashboard over a sample fleet
python -m dashboard.tools.openapi FILE            # write the OpenAPI document of a server
python -m dashboard.tools.python_client           # regenerate src/gpufleet/client
python -m dashboard.tools.screenshots http://127.0.0.1:8080/ docs/images
"""
