-- Sum of v1 by id1
SELECT id1, sum(v1) AS v1 FROM x GROUP BY id1;

-- Sum of v1 by id1, id2
SELECT id1, id2, sum(v1) AS v1 FROM x GROUP BY id1, id2;

-- Sum of v1 and mean of v3 by id3
SELECT id3, sum(v1) AS v1, avg(v3) AS v3 FROM x GROUP BY id3;

-- Means of v1, v2, v3 by id4
SELECT id4, avg(v1) AS v1, avg(v2) AS v2, avg(v3) AS v3 FROM x GROUP BY id4;

-- Sums of v1, v2, v3 by id6
SELECT id6, sum(v1) AS v1, sum(v2) AS v2, sum(v3) AS v3 FROM x GROUP BY id6;

-- Median and standard deviation of v3 by id4, id5
SELECT id4, id5, median(v3) AS median_v3, stddev(v3) AS sd_v3 FROM x GROUP BY id4, id5;

-- Range of v1 and v2 by id3
SELECT id3, max(v1) - min(v2) AS range_v1_v2 FROM x GROUP BY id3;

-- The two largest v3 by id6
SELECT id6, v3 AS largest2_v3
FROM (SELECT id6, v3, row_number() OVER (PARTITION BY id6 ORDER BY v3 DESC) AS place FROM x) AS placed
WHERE place <= 2;

-- Squared correlation of v1 and v2 by id2, id4
SELECT id2, id4, power(corr(v1, v2), 2) AS r2 FROM x GROUP BY id2, id4;

-- Sum of v3 and count by id1 to id6
SELECT id1, id2, id3, id4, id5, id6, sum(v3) AS v3, count(*) AS count
FROM x
GROUP BY id1, id2, id3, id4, id5, id6;
