-- TPC-H Q6
SELECT sum(l_extendedprice * l_discount) AS revenue
FROM lineitem
WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
  AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24;

-- Late deliveries
SELECT count(*) AS late, sum(l_quantity) AS quantity, avg(l_discount) AS discount,
       min(l_extendedprice) AS cheapest, max(l_extendedprice) AS dearest,
       min(l_shipdate) AS first_shipped, max(l_receiptdate) AS last_received
FROM lineitem
WHERE l_receiptdate > l_commitdate;

-- Two halves of the time
SELECT count(*) FILTER (WHERE l_shipdate < DATE '1995-06-17') AS earlier,
       count(*) FILTER (WHERE l_shipdate >= DATE '1995-06-17') AS later,
       sum(l_extendedprice * (1 - l_discount)) FILTER (WHERE l_shipdate < DATE '1995-06-17') AS earlier_revenue,
       sum(l_extendedprice * (1 - l_discount)) FILTER (WHERE l_shipdate >= DATE '1995-06-17') AS later_revenue
FROM lineitem
WHERE l_tax > 0.02 AND l_linenumber IN (1, 2, 3);
