"""Tables and charts from the JSON of pytest-benchmark.

pytest bench --benchmark-json=bench.json
python -m bench.report bench.json                    # a Markdown table
python -m bench.report.chart bench.json GROUP > chart.svg
"""
