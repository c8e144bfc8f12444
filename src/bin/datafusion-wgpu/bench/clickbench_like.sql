-- Rows
SELECT count(*) FROM hits;

-- Rows from advertisements
SELECT count(*) FROM hits WHERE advertiser_id <> 0;

-- Several sums and a mean
SELECT sum(advertiser_id), count(*), avg(screen_width) FROM hits;

-- Mean of a 64-bit column
SELECT avg(user_id) FROM hits;

-- Distinct users
SELECT count(DISTINCT user_id) FROM hits;

-- Distinct search phrases
SELECT count(DISTINCT search_phrase) FROM hits;

-- First and last day
SELECT min(event_date), max(event_date) FROM hits;

-- Earnings of a week of purchases
SELECT sum(price * quantity), count(*), min(price), max(price)
FROM hits
WHERE event_date BETWEEN DATE '2023-03-06' AND DATE '2023-03-12' AND is_purchase AND quantity > 1;

-- Rows an advertiser
SELECT advertiser_id, count(*) AS views
FROM hits
WHERE advertiser_id <> 0
GROUP BY advertiser_id
ORDER BY views DESC, advertiser_id;

-- Regions with most users
SELECT region_id, count(DISTINCT user_id) AS users
FROM hits
GROUP BY region_id
ORDER BY users DESC, region_id
LIMIT 10;

-- Regions with several aggregates
SELECT region_id, sum(advertiser_id), count(*) AS views, avg(screen_width), count(DISTINCT user_id)
FROM hits
GROUP BY region_id
ORDER BY views DESC, region_id
LIMIT 10;

-- Phone models with most users
SELECT phone_model, count(DISTINCT user_id) AS users
FROM hits
WHERE phone_model <> ''
GROUP BY phone_model
ORDER BY users DESC, phone_model
LIMIT 10;

-- Most frequent search phrases
SELECT search_phrase, count(*) AS views
FROM hits
WHERE search_phrase <> ''
GROUP BY search_phrase
ORDER BY views DESC, search_phrase
LIMIT 10;

-- Most frequent search phrases an engine
SELECT search_engine_id, search_phrase, count(*) AS views
FROM hits
WHERE search_phrase <> ''
GROUP BY search_engine_id, search_phrase
ORDER BY views DESC, search_engine_id, search_phrase
LIMIT 10;

-- Users with most rows
SELECT user_id, count(*) AS views FROM hits GROUP BY user_id ORDER BY views DESC, user_id LIMIT 10;

-- Users and search phrases with most rows
SELECT user_id, search_phrase, count(*) AS views
FROM hits
GROUP BY user_id, search_phrase
ORDER BY views DESC, user_id, search_phrase
LIMIT 10;

-- Users, minutes and search phrases with most rows
SELECT user_id, date_part('minute', event_time) AS minute, search_phrase, count(*) AS views
FROM hits
GROUP BY user_id, minute, search_phrase
ORDER BY views DESC, user_id, minute, search_phrase
LIMIT 10;

-- One user's rows
SELECT count(*) FROM hits WHERE user_id = 4611686018427387905;

-- Addresses with a word in them
SELECT count(*) FROM hits WHERE url LIKE '%shop%';

-- Search phrases of addresses with a word in them
SELECT search_phrase, min(url), count(*) AS views
FROM hits
WHERE url LIKE '%shop%' AND search_phrase <> ''
GROUP BY search_phrase
ORDER BY views DESC, search_phrase
LIMIT 10;

-- Whole rows by time
SELECT *
FROM hits
WHERE url LIKE '%video%'
ORDER BY event_time, hit_id
LIMIT 10;

-- First search phrases by time
SELECT search_phrase
FROM hits
WHERE search_phrase <> ''
ORDER BY event_time, search_phrase
LIMIT 10;

-- Lengths of addresses by counter
SELECT counter_id, avg(length(url)) AS mean_length, count(*) AS views
FROM hits
WHERE url <> ''
GROUP BY counter_id
HAVING count(*) > 100
ORDER BY mean_length DESC, counter_id
LIMIT 25;

-- Referring hosts
SELECT
    regexp_replace(referer, '^https?://(?:www\.)?([^/]+)/.*$', '\1') AS host,
    avg(length(referer)) AS mean_length,
    count(*) AS views,
    min(referer)
FROM hits
WHERE referer <> ''
GROUP BY host
HAVING count(*) > 100
ORDER BY mean_length DESC, host
LIMIT 25;

-- Many sums of a computed column
SELECT
    sum(screen_width),
    sum(screen_width + 1),
    sum(screen_width + 2),
    sum(screen_width + 3),
    sum(screen_width + 4),
    sum(screen_width + 5),
    sum(screen_width + 6),
    sum(screen_width + 7),
    sum(screen_width + 8),
    sum(screen_width + 9),
    sum(screen_width + 10),
    sum(screen_width + 11)
FROM hits;

-- Clients of a search engine
SELECT search_engine_id, client_ip, count(*) AS views, sum(is_refresh), avg(screen_width)
FROM hits
WHERE search_phrase <> ''
GROUP BY search_engine_id, client_ip
ORDER BY views DESC, search_engine_id, client_ip
LIMIT 10;

-- Rows by hit and client, all groups small
SELECT hit_id, client_ip, count(*) AS views, sum(is_refresh), avg(screen_width)
FROM hits
GROUP BY hit_id, client_ip
ORDER BY views DESC, hit_id, client_ip
LIMIT 10;

-- Most frequent addresses
SELECT url, count(*) AS views FROM hits GROUP BY url ORDER BY views DESC, url LIMIT 10;

-- Addresses of a counter in a month
SELECT url, count(*) AS views
FROM hits
WHERE counter_id = 62
  AND event_date BETWEEN DATE '2023-03-01' AND DATE '2023-03-31'
  AND NOT is_bot
  AND is_refresh = 0
  AND url <> ''
GROUP BY url
ORDER BY views DESC, url
LIMIT 10;

-- Window sizes of a counter and an address
SELECT window_width, window_height, count(*) AS views
FROM hits
WHERE counter_id = 62 AND is_refresh = 0 AND NOT is_bot AND url_hash = 2868770270353813623
GROUP BY window_width, window_height
ORDER BY views DESC, window_width, window_height
LIMIT 10 OFFSET 10;

-- Views a minute on two days
SELECT date_trunc('minute', event_time) AS minute, count(*) AS views
FROM hits
WHERE counter_id = 62
  AND event_date BETWEEN DATE '2023-03-14' AND DATE '2023-03-15'
  AND is_refresh = 0
  AND NOT is_bot
GROUP BY minute
ORDER BY minute
LIMIT 10;
